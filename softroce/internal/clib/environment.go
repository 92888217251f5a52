// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package main

import "github.com/verbena-go/verbena/softroce/internal/capi"

// The runtime runs it before the first call of a function.
func init() { capi.TakeEnvironment() }
