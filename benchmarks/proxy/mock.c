/* A mock of vLLM's chat route: one thread, epoll. Usage: mock PORT TOKENS GAP_MS
 *
 * A bare request gets a bare reply, an injected one ids and log-probabilities, as vLLM writes them. A stream sends an event a token, GAP_MS
 * apart. Adapters can be loaded and are listed. GET anything else answers 200, so that health checks pass. */
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

enum { MAX_FD = 65536, HEAD = 1024, MAX_ADAPTERS = 64, NAME = 1024 };

typedef struct {
    char *in;
    size_t used, size;
    int next;   /* token that is due in a stream; -1: no stream */
    int injected;
    double due;
} Conn;

static Conn conns[MAX_FD];
static int streams[MAX_FD], stream_count;
static char *whole[2];
static size_t whole_size[2];
static int tokens;
static double gap;
static char adapters[MAX_ADAPTERS][NAME], roots[MAX_ADAPTERS][NAME];
static int adapter_count;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void put(int fd, const char *data, size_t size) {
    while (size > 0) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN) return;
            usleep(20);
            continue;
        }
        data += n;
        size -= (size_t)n;
    }
}

static int logprob(char *out, int i) {
    return sprintf(out, "{\"token\":\" word\",\"logprob\":-0.%06d,\"bytes\":[32,119,111,114,100],\"top_logprobs\":[]}", 123456 + i);
}

static void build(int injected) {
    char *body = malloc(4096 + (size_t)tokens * 160), *p = body;
    p += sprintf(p, "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"m\",\"choices\":[{\"index\":0,"
                    "\"message\":{\"role\":\"assistant\",\"content\":\"");
    for (int i = 0; i < tokens; i++) p += sprintf(p, " word");
    p += sprintf(p, "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null},\"logprobs\":");
    if (injected) {
        p += sprintf(p, "{\"content\":[");
        for (int i = 0; i < tokens; i++) {
            if (i) *p++ = ',';
            p += logprob(p, i);
        }
        p += sprintf(p, "]}");
    } else
        p += sprintf(p, "null");
    p += sprintf(p, ",\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":");
    if (injected) {
        for (int i = 0; i < tokens; i++) p += sprintf(p, "%c%d", i ? ',' : '[', 1000 + i);
        *p++ = ']';
    } else
        p += sprintf(p, "null");
    p += sprintf(p, ",\"routed_experts\":null}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":64,\"total_tokens\":96,"
                    "\"completion_tokens\":32,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":");
    if (injected) {
        for (int i = 0; i < 64; i++) p += sprintf(p, "%c%d", i ? ',' : '[', 500 + i);
        *p++ = ']';
    } else
        p += sprintf(p, "null");
    p += sprintf(p, ",\"prompt_text\":null,\"kv_transfer_params\":null}");
    size_t size = (size_t)(p - body);
    whole[injected] = malloc(size + HEAD);
    int head = sprintf(whole[injected], "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-length: %zu\r\ncontent-type: application/json\r\n\r\n", size);
    memcpy(whole[injected] + head, body, size);
    whole_size[injected] = (size_t)head + size;
    free(body);
}

static void event(int fd, Conn *c) {
    char data[1024], out[1200];
    int n;
    if (c->next < tokens) {
        n = sprintf(data, "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"m\","
                          "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":");
        if (c->injected) {
            n += sprintf(data + n, "{\"content\":[");
            n += logprob(data + n, c->next);
            n += sprintf(data + n, "]}");
        } else
            n += sprintf(data + n, "null");
        n += sprintf(data + n, ",\"finish_reason\":%s,\"token_ids\":", c->next == tokens - 1 ? "\"stop\"" : "null");
        n += c->injected ? sprintf(data + n, "[%d]}]}\n\n", 1000 + c->next) : sprintf(data + n, "null}]}\n\n");
    } else
        n = sprintf(data, "data: [DONE]\n\n");
    int size = sprintf(out, "%x\r\n", (unsigned)n);
    memcpy(out + size, data, (size_t)n);
    size += n;
    size += sprintf(out + size, c->next == tokens ? "\r\n0\r\n\r\n" : "\r\n");
    put(fd, out, (size_t)size);
    c->next = c->next == tokens ? -1 : c->next + 1;
    c->due += gap;
}

/* The string behind a key of a flat JSON object. */
static void member(const char *body, const char *key, char *out) {
    const char *at = strstr(body, key), *end;
    *out = 0;
    if (!at || !(at = strchr(at + strlen(key), ':')) || !(at = strchr(at, '"')) || !(end = strchr(at + 1, '"'))) return;
    if (end - at <= NAME) memcpy(out, at + 1, (size_t)(end - at - 1)), out[end - at - 1] = 0;
}

static void change_adapters(const char *path, const char *body) {
    char name[NAME], root[NAME];
    member(body, "\"lora_name\"", name);
    member(body, "\"lora_path\"", root);
    if (!*name) return;
    int i = 0;
    while (i < adapter_count && strcmp(adapters[i], name)) i++;
    if (!strncmp(path, "/v1/load", 8) && i < MAX_ADAPTERS) {
        strcpy(adapters[i], name);
        strcpy(roots[i], root);
        adapter_count += i == adapter_count;
    } else if (i < adapter_count) {
        adapter_count--;
        memmove(adapters[i], adapters[adapter_count], NAME);
        memmove(roots[i], roots[adapter_count], NAME);
    }
}

static void list_models(int fd) {
    static char data[MAX_ADAPTERS * (2 * NAME + 64)], out[sizeof data + HEAD];
    int n = sprintf(data, "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"root\":\"m\"}");
    for (int i = 0; i < adapter_count; i++) n += sprintf(data + n, ",{\"id\":\"%s\",\"root\":\"%s\"}", adapters[i], roots[i]);
    n += sprintf(data + n, "]}");
    int size = sprintf(out, "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%s", n, data);
    put(fd, out, (size_t)size);
}

static void answer(int fd, Conn *c, size_t head, size_t length) {
    char *body = c->in + head, *path = strchr(c->in, ' ');
    char keep = body[length];
    if (path && !strncmp(c->in, "GET /v1/models ", 15)) {
        list_models(fd);
        return;
    }
    body[length] = 0;
    if (path && (!strncmp(path + 1, "/v1/load_lora", 13) || !strncmp(path + 1, "/v1/unload_lora", 15))) change_adapters(path + 1, body);
    c->injected = strstr(body, "\"return_token_ids\":true") != NULL;
    int stream = strstr(body, "\"stream\":true") != NULL || strstr(body, "\"stream\": true") != NULL;
    body[length] = keep;
    if (!stream) {
        put(fd, whole[c->injected], whole_size[c->injected]);
        return;
    }
    static const char *start = "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    put(fd, start, strlen(start));
    c->next = 0;
    c->due = now() + gap;
    streams[stream_count++] = fd;
}

static void readable(int fd) {
    Conn *c = &conns[fd];
    if (c->size - c->used < 65536) c->in = realloc(c->in, (c->size = c->size * 2 + 131072) + 1);
    ssize_t n = recv(fd, c->in + c->used, c->size - c->used, MSG_DONTWAIT);
    if (n <= 0) {
        if (n < 0 && errno == EAGAIN) return;
        c->used = 0;
        c->next = -2; /* the stream's loop forgets it */
        close(fd);
        return;
    }
    c->used += (size_t)n;
    for (;;) {
        c->in[c->used] = 0;
        char *end = memmem(c->in, c->used, "\r\n\r\n", 4);
        if (!end) return;
        size_t head = (size_t)(end - c->in) + 4;
        *end = 0;
        char *field = strcasestr(c->in, "\r\ncontent-length:");
        size_t length = field ? (size_t)atol(field + 17) : 0;
        *end = '\r';
        if (c->used < head + length) return;
        answer(fd, c, head, length);
        memmove(c->in, c->in + head + length, c->used - head - length);
        c->used -= head + length;
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    tokens = atoi(argv[2]);
    gap = atof(argv[3]) * 1e-3;
    build(0);
    build(1);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) return perror("bind"), 1;
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.fd = listener});
    struct epoll_event events[512];
    for (;;) {
        int n = epoll_wait(poll, events, 512, stream_count ? 1 : 1000);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd != listener) {
                readable(fd);
                continue;
            }
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                conns[fd].used = 0;
                conns[fd].next = -1;
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
            }
        }
        double t = now();
        for (int i = 0; i < stream_count;) {
            Conn *c = &conns[streams[i]];
            while (c->next >= 0 && c->due <= t) event(streams[i], c);
            if (c->next < 0)
                streams[i] = streams[--stream_count];
            else
                i++;
        }
    }
}
