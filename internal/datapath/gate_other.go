// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && !race && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath

func unseen(f func() bool) func() bool { return f }

func enter() {}
func leave() {}
