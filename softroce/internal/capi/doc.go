// SPDX-License-Identifier: Apache-2.0

// Package capi implements the C functions of libibverbs and librdmacm over a
// device in user space. Package dl finds these functions as it finds those of
// the installed libraries.
//
// Command gen emits the skeleton, which has a C function for each function that
// the libraries export and for each operation of their objects. The functions
// that post and poll are written in C, in post.c and poll.c. Each other C
// function calls the Go function of the same name in verbs or cm, which the Go
// files of this package set.
//
// The package maps the C structs that programs hold to the objects of packages
// engine and cm. Package node does the work of the device.
package capi
