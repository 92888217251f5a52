// SPDX-License-Identifier: Apache-2.0

// Package cloops has loops in C that post and poll, for benchmarks. They do
// what a C program would do, for comparison with the Go program that is
// measured.
package cloops
