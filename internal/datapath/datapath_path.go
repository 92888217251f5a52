// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && !race && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath

// In programs that are built with -race, the functions below may call Go: the
// device in user space then tells the race detector about the memory of
// requests.

/*
#include "datapath.h"
#cgo noescape verbena_post_send
#cgo nocallback verbena_post_send
#cgo noescape verbena_post_recv
#cgo nocallback verbena_post_recv
#cgo noescape verbena_poll
#cgo nocallback verbena_poll
#cgo noescape verbena_poll_or_arm
#cgo nocallback verbena_poll_or_arm
#cgo noescape verbena_spin
#cgo nocallback verbena_spin
#cgo noescape verbena_exchange
#cgo nocallback verbena_exchange
#cgo noescape verbena_sleep
#cgo nocallback verbena_sleep
#cgo noescape verbena_look
#cgo nocallback verbena_look
*/
import "C"
