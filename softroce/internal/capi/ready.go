// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import "C"

// soft_ready is for the shared library of programs that are not Go. It returns
// when Go's runtime has started and has set its signal handlers.
//
//export soft_ready
func soft_ready() {}
