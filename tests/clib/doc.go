// SPDX-License-Identifier: Apache-2.0

// Package clib tests the device in user space from C, through its libraries:
// what C's conventions, signals and forks ask of them. Whole programs are in
// tests/matrix.
package clib
