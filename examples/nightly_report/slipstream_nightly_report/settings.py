from pydantic import Field

from slipstream.settings.base import Section


class ReportSettings(Section):
    webhook: str | None = Field(None, description="URL that each report is posted to as JSON.")
    hour: int = Field(6, ge=0, le=23, description="UTC hour in which the report of the day before is sent.")
