from slipstream.cli.common import add_client, connect
from slipstream.client.ask import Ask


def add(parser):
    add_client(parser)


def run(args):
    with connect(args) as client:
        print(client.ask(Ask("GET", "/nightly-report", read=lambda response: response.text)))
    return 0
