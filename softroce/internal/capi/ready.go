// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import "C"

// soft_ready returns once Go's runtime has started and has set its signal
// handlers. The shared library for programs that are not written in Go calls
// it.
//
//export soft_ready
func soft_ready() {}
