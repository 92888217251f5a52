// SPDX-License-Identifier: Apache-2.0

// Package face is a library that implements libibverbs and librdmacm: their C
// functions, over a device that is a program. Package dl finds them as it finds
// those of the installed libraries.
//
// The skeleton, which gen emit writes, has a C function for each function that the
// libraries export and each operation of their objects. Those that post and poll
// are C, in post.c and poll.c; all others call the function of that name in verbs or cm.
package face
