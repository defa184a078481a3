/* The generator's hot loops: open many connections, and drive messages through them.

   Nothing is built, masked or allocated per message here. `drive` sends slices of ready buffers,
   messages and acknowledgements alike, and counts markers in what comes back; `open_all` runs the
   script of requests and expected answers of every connection. Both are limited in time and return
   0 or a negative errno. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

enum {
    CARRY_BYTES = 32,           /* longest marker */
    ARRIVAL_BYTES = 1 << 18,    /* most that one recv takes */
    FOREGROUND_EVENTS = 1024,
    BACKGROUND_EVENTS = 32,     /* few, so that foreground arrivals are stamped promptly */
    WAIT_MS = 20,
    ANSWER_BYTES = 256,
    PER_SOURCE = 10000,         /* connections from one loopback address, which has 28 232 ports */
};

/* A stream of messages from one socket to none, one or many. Message m is complete when its last
   copy has arrived, and answered when the server's word for it has come back to the sender. Copies
   and answers keep their order on every socket, so messages complete in order, too. */
struct lane {
    int sender;
    int receivers;
    int messages;
    int is_answered;            /* the sender's socket is counted, and the window is in answers */
    int frame_bytes;
    int window;                 /* messages in flight; 0 = sent when the schedule says so */
    int refill_at;              /* more are sent when this few are left in flight */
    int background;             /* the run does not wait for this lane */
    int allowed;                /* messages released for sending */
    int complete;
    int answers;
    int *left;                  /* by message: copies still to arrive */
    const char *frames;
    double *began;              /* by message: when it was sent, or should have been */
    double *took;               /* by message: seconds until its last copy */
    double *answered;           /* by message: seconds until its answer */
    long sent_bytes;
    long deliveries;
};

enum role {
    DRAINED,                    /* a sender's own socket, read only to keep it from filling up */
    COPIES,
    ANSWERS,
};

struct receiver {
    int fd;
    int lane;
    int role;
    int got;
    int marker_bytes;
    int ack_bytes;              /* 0: copies are not acknowledged */
    const char *marker;
    const char *acks;           /* ready frames, one for each copy in its order */
    long acked_bytes;
    int carried;
    char carry[CARRY_BYTES];
};

struct outcome {
    double seconds;
    double cpu;                 /* what the generator itself used of them */
    double lag;                 /* how late the worst scheduled message was sent */
    char answer[ANSWER_BYTES];  /* the first bytes a sender received that were no answer */
};

struct run {
    struct lane *lanes;
    struct receiver *receivers;
    struct outcome *outcome;
    int lane_count;
    int receiver_count;
    int is_stalled;             /* some socket has bytes the kernel did not take */
    long remaining;             /* of foreground lanes: last copies and answers still to arrive */
};

static char arrivals[CARRY_BYTES + ARRIVAL_BYTES];

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

static double own_cpu(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

/* Occurrences of the marker in what was carried over followed by the fresh bytes, which lie at
   `arrivals + CARRY_BYTES`. Keeps the bytes that may begin the next occurrence. */
static int count(char *carry, int *carried, long fresh, const char *marker, int marker_bytes)
{
    char *at = arrivals + CARRY_BYTES - *carried;
    char *end = arrivals + CARRY_BYTES + fresh;
    char *hit;
    int hits = 0;

    memcpy(at, carry, *carried);
    while ((hit = memmem(at, end - at, marker, marker_bytes))) {
        hits++;
        at = hit + marker_bytes;
    }
    *carried = end - at < marker_bytes - 1 ? end - at : marker_bytes - 1;
    memcpy(carry, end - *carried, *carried);
    return hits;
}

/* Sends what is due of `frames`, of which `*sent` bytes have left already. */
static int push_bytes(struct run *run, int fd, const char *frames, long due, long *sent)
{
    ssize_t taken;

    if (due == *sent)
        return 0;
    taken = send(fd, frames + *sent, due - *sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken < 0 && errno != EAGAIN)
        return -errno;
    if (taken > 0)
        *sent += taken;
    if (*sent < due)
        run->is_stalled = 1;
    return 0;
}

static int push(struct run *run, struct lane *lane)
{
    long due = (long)lane->allowed * lane->frame_bytes;
    return push_bytes(run, lane->sender, lane->frames, due, &lane->sent_bytes);
}

static int push_acks(struct run *run, struct receiver *receiver)
{
    long due = (long)receiver->got * receiver->ack_bytes;
    return push_bytes(run, receiver->fd, receiver->acks, due, &receiver->acked_bytes);
}

static void release(struct lane *lane, double began)
{
    lane->left[lane->allowed] = lane->receivers;
    lane->began[lane->allowed] = began;
    lane->allowed++;
}

/* What is in flight is counted in copies: one message is out of it when as many copies have arrived
   as it has receivers, whichever messages they belong to. Waiting for the last copy instead would
   release messages in bursts and flatter servers that write bursts at once. */
static int refill(struct run *run, struct lane *lane)
{
    int arrived, limit;
    double t;

    if (!lane->window)
        return 0;
    arrived = lane->is_answered ? lane->answers : lane->deliveries / lane->receivers;
    limit = arrived + lane->window;
    if (lane->allowed - arrived > lane->refill_at)
        return 0;
    if (limit > lane->messages)
        limit = lane->messages;
    for (t = now(); lane->allowed < limit;)
        release(lane, t);
    return push(run, lane);
}

static int take_copies(struct run *run, struct receiver *receiver, int copies, double t)
{
    struct lane *lane = &run->lanes[receiver->lane];

    lane->deliveries += copies;
    for (; copies; copies--) {
        int message = receiver->got++;
        if (message >= lane->allowed)
            return -EPROTO;     /* more copies than messages: something arrived twice */
        if (--lane->left[message] == 0) {
            lane->took[message] = t - lane->began[message];
            lane->complete++;
            run->remaining -= !lane->background;
        }
    }
    return push_acks(run, receiver);
}

static int take_answers(struct run *run, struct lane *lane, int answers, double t)
{
    for (; answers; answers--) {
        int message = lane->answers++;
        if (message >= lane->allowed)
            return -EPROTO;
        lane->answered[message] = t - lane->began[message];
        run->remaining -= !lane->background;
    }
    return 0;
}

static int receive(struct run *run, struct receiver *receiver)
{
    struct lane *lane = &run->lanes[receiver->lane];
    ssize_t fresh = recv(receiver->fd, arrivals + CARRY_BYTES, ARRIVAL_BYTES, MSG_DONTWAIT);
    double t = now();
    int hits = 0, error;

    if (fresh == 0)
        return -ECONNRESET;
    if (fresh < 0)
        return errno == EAGAIN ? 0 : -errno;
    if (receiver->role != DRAINED)
        hits = count(receiver->carry, &receiver->carried, fresh, receiver->marker,
                     receiver->marker_bytes);
    if (receiver->role != COPIES && !hits && !run->outcome->answer[0])
        memcpy(run->outcome->answer, arrivals + CARRY_BYTES,
               fresh < ANSWER_BYTES ? fresh : ANSWER_BYTES);
    if (!hits)
        return 0;
    error = receiver->role == COPIES ? take_copies(run, receiver, hits, t)
                                     : take_answers(run, lane, hits, t);
    return error ? error : refill(run, lane);
}

static int receive_ready(struct run *run, int ep, int events_max, int wait_ms)
{
    static struct epoll_event events[FOREGROUND_EVENTS];
    int ready = epoll_wait(ep, events, events_max, wait_ms);
    int error;

    if (ready < 0)
        return -errno;
    for (int i = 0; i < ready; i++)
        if ((error = receive(run, &run->receivers[events[i].data.u32])))
            return error;
    return 0;
}

/* Scheduled lanes take turns: message k of them all is due at start + k / rate. */
static int keep_schedule(struct run *run, int scheduled, double start, double rate, long *next)
{
    double t = now();
    double due;
    int error;

    while ((due = start + *next / rate) <= t) {
        struct lane *lane = &run->lanes[*next % scheduled];
        if (lane->allowed == lane->messages)
            return 0;
        if (t - due > run->outcome->lag)
            run->outcome->lag = t - due;
        release(lane, due);
        if ((error = push(run, lane)))
            return error;
        ++*next;
    }
    return 0;
}

static int push_stalled(struct run *run)
{
    int error;

    run->is_stalled = 0;
    for (int i = 0; i < run->lane_count; i++)
        if ((error = push(run, &run->lanes[i])))
            return error;
    for (int i = 0; i < run->receiver_count; i++)
        if ((error = push_acks(run, &run->receivers[i])))
            return error;
    return 0;
}

static int watch(int ep, int fd, unsigned events, unsigned index, int operation)
{
    struct epoll_event event = {.events = events, .data.u32 = index};
    return epoll_ctl(ep, operation, fd, &event) ? -errno : 0;
}

static int run_until(struct run *run, int foreground, int background, int scheduled, int is_mixed,
                     double rate, double seconds)
{
    double start = now(), cpu = own_cpu();
    long next = 0;
    int error;

    for (int i = 0; i < run->lane_count; i++)
        if ((error = refill(run, &run->lanes[i])))
            return error;
    while (run->remaining > 0 && now() - start < seconds) {
        if (scheduled && (error = keep_schedule(run, scheduled, start, rate, &next)))
            return error;
        if (run->is_stalled && (error = push_stalled(run)))
            return error;
        /* A schedule is kept by spinning: sleeping would add the wake-up to every latency. */
        int wait_ms = scheduled || is_mixed ? 0 : run->is_stalled ? 1 : WAIT_MS;
        if ((error = receive_ready(run, foreground, FOREGROUND_EVENTS, wait_ms)))
            return error;
        if (is_mixed && (error = receive_ready(run, background, BACKGROUND_EVENTS, 0)))
            return error;
    }
    run->outcome->seconds = now() - start;
    run->outcome->cpu = own_cpu() - cpu;
    return 0;
}

/* Scheduled lanes, if any, come first in `lanes`. */
int drive(struct lane *lanes, int lane_count, struct receiver *receivers, int receiver_count,
          double rate, double seconds, struct outcome *outcome)
{
    struct run run = {.lanes = lanes, .receivers = receivers, .outcome = outcome,
                      .lane_count = lane_count, .receiver_count = receiver_count};
    int foreground = epoll_create1(EPOLL_CLOEXEC);
    int background = epoll_create1(EPOLL_CLOEXEC);
    int scheduled = 0, is_mixed = 0, error = 0;

    if (foreground < 0 || background < 0)
        error = -errno;
    for (int i = 0; i < lane_count; i++) {
        scheduled += !lanes[i].window;
        is_mixed |= lanes[i].background;
        int awaited = (lanes[i].receivers > 0) + lanes[i].is_answered;
        run.remaining += lanes[i].background ? 0 : (long)awaited * lanes[i].messages;
    }
    for (int i = 0; i < receiver_count && !error; i++) {
        if (receivers[i].marker_bytes > CARRY_BYTES)
            error = -EINVAL;
        int ep = lanes[receivers[i].lane].background ? background : foreground;
        if (!error)
            error = watch(ep, receivers[i].fd, EPOLLIN, i, EPOLL_CTL_ADD);
    }
    if (!error)
        error = run_until(&run, foreground, background, scheduled, is_mixed, rate, seconds);
    close(foreground);
    close(background);
    return error;
}

/* Every connection follows the same steps: send requests[index * steps + step], await the step's
   answer. */
struct script {
    int steps;
    const char **requests;
    const int *request_bytes;
    const char **answers;
};

struct visitor {
    int step;
    int is_connected;
    int carried;
    char carry[CARRY_BYTES];
};

static int new_socket(unsigned source, int buffer_bytes)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(source)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int yes = 1;

    if (fd < 0)
        return -errno;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
    if (buffer_bytes) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    }
    if (bind(fd, (struct sockaddr *)&from, sizeof from)) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

static int start(int port, unsigned source, int buffer_bytes, int ep, int index, int *fd)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    if ((*fd = new_socket(source, buffer_bytes)) < 0)
        return *fd;
    if (connect(*fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)
        return -errno;
    return watch(ep, *fd, EPOLLOUT, index, EPOLL_CTL_ADD);
}

static int ask(const struct script *script, const struct visitor *visitor, int index, int fd)
{
    int at = index * script->steps + visitor->step;
    ssize_t sent = send(fd, script->requests[at], script->request_bytes[at], MSG_NOSIGNAL);

    if (sent < 0)
        return -errno;
    return sent == script->request_bytes[at] ? 0 : -EMSGSIZE;
}

/* One event of one visitor: 1 when its script is finished, 0 when not, or a negative errno. */
static int advance(const struct script *script, struct visitor *visitor, int ep, int index, int fd,
                   char *answer)
{
    ssize_t fresh;
    const char *wanted = script->answers[visitor->step];
    int error;

    if (!visitor->is_connected) {
        visitor->is_connected = 1;
        if ((error = ask(script, visitor, index, fd)))
            return error;
        return watch(ep, fd, EPOLLIN, index, EPOLL_CTL_MOD);
    }
    fresh = recv(fd, arrivals + CARRY_BYTES, ARRIVAL_BYTES, 0);
    if (fresh < 0)
        return errno == EAGAIN ? 0 : -errno;
    if (fresh == 0)
        return -ECONNRESET;
    memset(answer, 0, ANSWER_BYTES);
    memcpy(answer, arrivals + CARRY_BYTES, fresh < ANSWER_BYTES ? fresh : ANSWER_BYTES);
    if (!count(visitor->carry, &visitor->carried, fresh, wanted, strlen(wanted)))
        return 0;
    visitor->carried = 0;
    if (++visitor->step < script->steps)
        return ask(script, visitor, index, fd);
    error = watch(ep, fd, 0, index, EPOLL_CTL_DEL);
    return error ? error : 1;
}

static int open_until(int ep, int port, unsigned source, int total, int at_once, int buffer_bytes,
                      const struct script *script, double seconds, struct visitor *visitors,
                      int *fds, struct outcome *outcome)
{
    static struct epoll_event events[FOREGROUND_EVENTS];
    double begin = now(), cpu = own_cpu();
    int started = 0, finished = 0;

    while (finished < total) {
        for (; started < total && started - finished < at_once; started++) {
            int error = start(port, source + started / PER_SOURCE, buffer_bytes, ep, started,
                              &fds[started]);
            if (error)
                return error;
        }
        int ready = epoll_wait(ep, events, FOREGROUND_EVENTS, WAIT_MS);
        if (ready < 0)
            return -errno;
        if (now() - begin > seconds)
            return -ETIMEDOUT;
        for (int i = 0; i < ready; i++) {
            int index = events[i].data.u32;
            int done = advance(script, &visitors[index], ep, index, fds[index], outcome->answer);
            if (done < 0)
                return done;
            finished += done;
        }
    }
    outcome->seconds = now() - begin;
    outcome->cpu = own_cpu() - cpu;
    return 0;
}

/* `fds` must be filled with -1 by the caller, who closes what is open afterwards, also on error.
   `visitors` is zeroed memory for `total` of them. */
int open_all(int port, unsigned source, int total, int at_once, int buffer_bytes, int steps,
             const char **requests, const int *request_bytes, const char **answers,
             double seconds, struct visitor *visitors, int *fds, struct outcome *outcome)
{
    struct script script = {steps, requests, request_bytes, answers};
    int ep = epoll_create1(EPOLL_CLOEXEC);
    int error;

    if (ep < 0)
        return -errno;
    error = open_until(ep, port, source, total, at_once, buffer_bytes, &script, seconds, visitors,
                       fds, outcome);
    close(ep);
    return error;
}
