// SPDX-License-Identifier: Apache-2.0

// Package cloops has loops in C that post and poll, for benchmarks: what a C
// program does where a Go program does what is measured beside it.
package cloops
