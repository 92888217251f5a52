// SPDX-License-Identifier: Apache-2.0

/* Adds up numbers of all ranks in two ways, and prints "right" if all ranks have what they should. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks, wrong;

static double number(int from, int i)
{
	return from * 1000.0 + i % 97;
}

static void check(const double *got, int n, double (*want)(int))
{
	for (int i = 0; i < n; i++)
		wrong += got[i] != want(i);
}

static double sum(int i)
{
	double s = 0;

	for (int r = 0; r < ranks; r++)
		s += number(r, i);
	return s;
}

static double own(int i)
{
	return number(rank, i);
}

/* Adds up what all ranks have, with messages around a ring and with MPI's own function. */
static void reduce(int n)
{
	double *total = malloc(n * sizeof(*total)), *out = malloc(n * sizeof(*out)), *in = malloc(n * sizeof(*in));

	for (int i = 0; i < n; i++)
		total[i] = out[i] = own(i);
	for (int step = 1; step < ranks; step++) {
		double *next = in;

		MPI_Sendrecv(out, n, MPI_DOUBLE, (rank + 1) % ranks, step, in, n, MPI_DOUBLE, (rank + ranks - 1) % ranks, step,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < n; i++)
			total[i] += in[i];
		in = out;
		out = next;
	}
	check(total, n, sum);
	for (int i = 0; i < n; i++)
		out[i] = own(i);
	MPI_Allreduce(out, in, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	check(in, n, sum);
	free(total);
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	int all;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int n = 1; n <= 1 << 18; n *= 8)
		reduce(n);
	MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		puts(all ? "wrong" : "right");
	MPI_Finalize();
	return wrong > 0;
}
