// An MPI's side of `bench`: one process per rank, started by mpirun.
//
// Rank r reads commands from the FIFO `r` of the folder that is the only argument, so that a rank whose turn it
// is not sleeps in the kernel. A command is `COLLECTIVE BYTES CALLS`. Rank 0 answers each with one line of
// nanoseconds on the FIFO `results`, where it says `ready` once all ranks read.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static long now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void call(const char *collective, float *data, float *gathered, int elements, int world) {
    if (!strcmp(collective, "allreduce")) {
        MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (!strcmp(collective, "allgather")) {
        MPI_Allgather(data, elements, MPI_FLOAT, gathered, elements, MPI_FLOAT, MPI_COMM_WORLD);
    } else {
        // Each rank is the root once, so that none runs ahead of the others.
        for (int root = 0; root < world; root++)
            MPI_Bcast(data, elements, MPI_FLOAT, root, MPI_COMM_WORLD);
    }
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    int rank, world;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    char path[4096], line[256], collective[32];
    snprintf(path, sizeof path, "%s/%d", arguments[1], rank);
    FILE *commands = fopen(path, "r");
    snprintf(path, sizeof path, "%s/results", arguments[1]);
    FILE *results = rank == 0 ? fopen(path, "w") : NULL;
    if (!commands || (rank == 0 && !results)) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        fprintf(results, "ready\n");
        fflush(results);
    }
    size_t bytes;
    int calls, warm_up = 2;
    while (fgets(line, sizeof line, commands)) {
        if (sscanf(line, "%31s %zu %d", collective, &bytes, &calls) != 3) break;
        float *data = calloc(1, bytes);
        float *gathered = strcmp(collective, "allgather") ? NULL : calloc(world, bytes);
        int divisor = strcmp(collective, "broadcast") ? 1 : world;
        if (gathered) memset(gathered, 0, bytes * world);
        for (int i = -warm_up; i < calls; i++) {
            long before = now_ns();
            call(collective, data, gathered, bytes / sizeof(float), world);
            if (i >= 0 && rank == 0) fprintf(results, i ? " %ld" : "%ld", (now_ns() - before) / divisor);
        }
        if (rank == 0) {
            fprintf(results, "\n");
            fflush(results);
        }
        free(data);
        free(gathered);
    }
    MPI_Finalize();
    return 0;
}
