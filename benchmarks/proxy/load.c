/* Closed-loop load: one thread, epoll. Usage: load PORT CONNECTIONS SECONDS BODYFILE [KEY]
 *
 * Each connection sends the body again as soon as its reply is whole, and in 0 seconds once: all of them at once. Eight calls make an episode.
 * Last line: one JSON object. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int fd, id;
    long calls;
    char *in;
    size_t used, size, head, length;
    int chunked;
    double sent;
} Conn;

static char *body, *request;
static size_t body_size;
static const char *key;
static int port, poller;
static double *latencies, *firsts;
static long answered, begun, bad, reconnected, capacity, events_seen;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fire(Conn *c) {
    int head = sprintf(request,
                       "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
                       "Authorization: Bearer %s\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 2.54.0\r\nX-Stainless-Lang: python\r\n"
                       "X-Stainless-Async: async:asyncio\r\nx-stainless-retry-count: 0\r\nx-slipstream-episode: e%d-%d-%ld\r\nx-slipstream-task: t%ld\r\n"
                       "Content-Length: %zu\r\n\r\n",
                       port, key, getpid(), c->id, c->calls / 8, c->calls / 64, body_size);
    memcpy(request + head, body, body_size);
    size_t left = (size_t)head + body_size;
    char *p = request;
    c->used = c->head = 0;
    c->calls++;
    c->sent = now();
    while (left > 0) {
        ssize_t n = send(c->fd, p, left, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) continue;
            return;
        }
        p += n;
        left -= (size_t)n;
    }
}

static void dial(Conn *c) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&at, sizeof at)) {
        perror("connect");
        exit(1);
    }
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = c});
}

static int whole(Conn *c) {
    if (!c->head) {
        char *end = memmem(c->in, c->used, "\r\n\r\n", 4);
        if (!end) return 0;
        c->head = (size_t)(end - c->in) + 4;
        *end = 0;
        bad += strncmp(c->in + 9, "200", 3) != 0;
        char *field = strcasestr(c->in, "\r\ncontent-length:");
        c->length = field ? (size_t)atol(field + 17) : 0;
        c->chunked = field == NULL;
        *end = '\r';
    }
    if (!c->chunked) return c->used >= c->head + c->length;
    return c->used >= c->head + 5 && !memcmp(c->in + c->used - 5, "0\r\n\r\n", 5);
}

static void count_events(Conn *c) {
    char *p = c->in + c->head, *end = c->in + c->used;
    while ((p = memmem(p, (size_t)(end - p), "data: {", 7))) events_seen++, p += 7;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    port = atoi(argv[1]);
    int connections = atoi(argv[2]);
    double seconds = atof(argv[3]);
    key = argc > 5 ? argv[5] : "sk-none";
    FILE *file = fopen(argv[4], "rb");
    body = malloc(1 << 22);
    body_size = fread(body, 1, 1 << 22, file);
    request = malloc(body_size + 4096);
    latencies = malloc(sizeof(double) * (size_t)(capacity = 4000000));
    firsts = malloc(sizeof(double) * (size_t)capacity);
    poller = epoll_create1(0);
    Conn *conns = calloc((size_t)connections, sizeof(Conn));
    for (int i = 0; i < connections; i++) {
        conns[i].id = i;
        conns[i].in = malloc((conns[i].size = 262144) + 1);
        dial(&conns[i]);
    }
    double start = now(), end = start + seconds;
    int running = connections;
    for (int i = 0; i < connections; i++) fire(&conns[i]);
    struct epoll_event events[512];
    while (running && now() < end + 30) {
        int n = epoll_wait(poller, events, 512, 100);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (c->size - c->used < 65536) c->in = realloc(c->in, (c->size *= 2) + 1);
            ssize_t got = recv(c->fd, c->in + c->used, c->size - c->used, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN) continue;
            double t = now();
            if (got <= 0) {
                reconnected++;
                close(c->fd);
                if (t >= end)
                    running--;
                else {
                    dial(c);
                    fire(c);
                }
                continue;
            }
            if (!c->used && begun < capacity) firsts[begun++] = t - c->sent;
            c->used += (size_t)got;
            c->in[c->used] = 0;
            if (!whole(c)) continue;
            if (c->chunked) count_events(c);
            if (answered < capacity) latencies[answered] = t - c->sent;
            answered++;
            if (t < end)
                fire(c);
            else
                running--;
        }
    }
    double took = now() - start;
    long kept = answered < capacity ? answered : capacity;
    qsort(latencies, (size_t)kept, sizeof(double), by_size);
    qsort(firsts, (size_t)begun, sizeof(double), by_size);
    printf("{\"rps\": %.1f, \"answered\": %ld, \"bad\": %ld, \"reconnected\": %ld, \"events\": %ld, \"first_p50_us\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"seconds\": %.3f}\n",
           answered / took, answered, bad, reconnected, events_seen, begun ? firsts[begun / 2] * 1e6 : 0.0, kept ? latencies[kept / 2] * 1e6 : 0.0,
           kept ? latencies[(long)(kept * 0.99)] * 1e6 : 0.0, took);
    return 0;
}
