// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakeverbs

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

/*
#include "fake.h"
*/
import "C"

// Echo changes an opened device. Each request that is posted to any of its
// queue pairs completes at once, and a poll of any of its completion queues
// returns the completions in the order of the posts. Calls must not be
// concurrent.
func Echo(context *libibverbs.Context) { C.verbena_fake_echo(unsafe.Pointer(context)) }
