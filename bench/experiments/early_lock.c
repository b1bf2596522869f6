/* A library that takes a robust lock in the constructor of a program that does not know of it, by LD_PRELOAD. Built and
 * preloaded by early_death.py. A thread of its own holds the lock: the list of the main thread belongs to the C library. */

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An entry of the list, and the lock at a fixed distance from it. */
struct held {
    struct robust_list entry;
    atomic_uint lock;
};

static struct robust_list_head head;

static void *hold(void *page) {
    struct held *held = page;
    head.list.next = &held->entry;
    head.futex_offset = offsetof(struct held, lock);
    held->entry.next = &head.list;
    syscall(SYS_set_robust_list, &head, sizeof head);
    atomic_store(&held->lock, (unsigned)syscall(SYS_gettid) | FUTEX_WAITERS);
    for (;;) pause();
}

__attribute__((constructor)) static void take(void) {
    const char *descriptor = getenv("EARLY_LOCK");
    if (descriptor == NULL) return;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(descriptor), 0);
    pthread_t thread;
    unsetenv("EARLY_LOCK");
    if (page != MAP_FAILED) pthread_create(&thread, NULL, hold, page);
}
