// SPDX-License-Identifier: Apache-2.0

// Package capi has the C functions of libibverbs and librdmacm, over a device
// in user space. Package dl finds them as it finds those of the installed
// libraries.
//
// The skeleton, which gen emit writes, has a C function for each function that
// the libraries export and each operation of their objects. Those that post and
// poll are C, in post.c and poll.c. All others call the function of that name
// in verbs or cm, which Go files of this package set.
//
// The package maps the C structs that programs hold to the objects of packages
// engine and cm. Package node does the work of the device.
package capi
