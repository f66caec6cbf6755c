/* The collectives of crates/comm/benches/collectives.rs by MPI: 64 MiB over all ranks, medians of the slowest rank's
   times in milliseconds, as a line of JSON. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 64 << 20, ROUNDS = 21, CASES = 3 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int part = BYTES / size, floats = BYTES / 4 / size;
    char *from = malloc(BYTES), *to = malloc(BYTES);
    float *contribution = malloc(BYTES), *sum = malloc(part);
    memset(from, 1, BYTES);
    memset(to, 0, BYTES);
    memset(sum, 0, part);
    for (int i = 0; i < BYTES / 4; i++) contribution[i] = 1;
    static double times[CASES][ROUNDS];
    for (int round = 0; round < ROUNDS; round++)
        for (int which = 0; which < CASES; which++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            if (which == 0) memcpy(to, from, BYTES);
            if (which == 1) MPI_Allgather(from, part, MPI_BYTE, to, part, MPI_BYTE, MPI_COMM_WORLD);
            if (which == 2) MPI_Reduce_scatter_block(contribution, sum, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            double own = 1e3 * (MPI_Wtime() - start);
            MPI_Reduce(&own, &times[which][round], 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        }
    if (rank == 0) {
        for (int which = 0; which < CASES; which++) qsort(times[which], ROUNDS, sizeof(double), ascending);
        printf("{\"memcpy\": %.4f, \"all_gather\": %.4f, \"reduce_scatter\": %.4f}\n", times[0][ROUNDS / 2],
               times[1][ROUNDS / 2], times[2][ROUNDS / 2]);
    }
    MPI_Finalize();
    return 0;
}
