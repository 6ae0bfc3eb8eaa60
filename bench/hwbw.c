/* What the machine's memory gives a reader, now: GB/s per thread count, printed as JSON.
 *
 *   cc -O3 -march=native -pthread bench/hwbw.c -o hwbw && ./hwbw [MiB] [threads]
 *
 * Decoding one stream reads every weight once a token, so tok/s cannot exceed this number over the bytes of the weights.
 * Measured before and after a load, because a shared machine changes.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_THREADS = 64, PASSES = 4, ROUNDS = 3 };

typedef uint64_t lanes __attribute__((vector_size(64)));

struct reader {
    const lanes *from;
    size_t count;
    int cpu;
    uint64_t sum;
    double began, ended;
    pthread_barrier_t *start;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *read_all(void *argument) {
    struct reader *r = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(r->cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    lanes sums[8];
    memset(sums, 0, sizeof sums);
    pthread_barrier_wait(r->start);
    r->began = now();
    for (int pass = 0; pass < PASSES; pass++)
        for (size_t i = 0; i + 8 <= r->count; i += 8)
            for (int j = 0; j < 8; j++) sums[j] ^= r->from[i + j];
    r->ended = now();
    for (int j = 1; j < 8; j++) sums[0] ^= sums[j];
    for (int j = 0; j < 8; j++) r->sum ^= sums[0][j]; /* used, so that nothing is optimised away */
    return NULL;
}

static double rate(const char *buffer, size_t bytes, int threads, const int *cpus, uint64_t *sink) {
    pthread_t ids[MAX_THREADS];
    struct reader readers[MAX_THREADS];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    size_t share = bytes / (size_t)threads / sizeof(lanes);
    for (int i = 0; i < threads; i++) {
        readers[i] = (struct reader){(const lanes *)buffer + share * (size_t)i, share, cpus[i], 0, 0, 0, &start};
        pthread_create(&ids[i], NULL, read_all, &readers[i]);
    }
    double began = 1e300, ended = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        if (readers[i].began < began) began = readers[i].began;
        if (readers[i].ended > ended) ended = readers[i].ended;
        *sink ^= readers[i].sum;
    }
    pthread_barrier_destroy(&start);
    return (double)(share * sizeof(lanes) * (size_t)threads) * PASSES / (ended - began) / 1e9;
}

int main(int argc, char **argv) {
    size_t bytes = (size_t)(argc > 1 ? atol(argv[1]) : 512) << 20;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    int cpus[MAX_THREADS], usable = 0;
    for (int c = 0; c < CPU_SETSIZE && usable < MAX_THREADS; c++)
        if (CPU_ISSET(c, &set)) cpus[usable++] = c;
    int most = argc > 2 ? atoi(argv[2]) : usable;
    if (most < 1 || most > usable || bytes == 0) {
        fprintf(stderr, "hwbw: threads: got %d, allowed: 1 to %d; MiB: 1 or more\n", most, usable);
        return 2;
    }
    char *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) {
        perror("hwbw: mmap");
        return 1;
    }
    madvise(buffer, bytes, MADV_HUGEPAGE);
    memset(buffer, 1, bytes);
    uint64_t sink = 0;
    double one = 0, all = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double a = rate(buffer, bytes, 1, cpus, &sink), b = rate(buffer, bytes, most, cpus, &sink);
        if (a > one) one = a;
        if (b > all) all = b;
    }
    printf("{\"read_gb_s_1\": %.2f, \"read_gb_s_all\": %.2f, \"threads\": %d, \"mib\": %zu, \"check\": %d}\n", one, all, most,
           bytes >> 20, (int)(sink & 1));
    return 0;
}
