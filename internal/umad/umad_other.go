// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x))

package umad

import "github.com/verbena-go/verbena/internal/cerr"

// Open fails: this program cannot call C.
func Open(string, int) (int, error) { return 0, cerr.Platform("umad_open_port") }

// Close fails, as Open does.
func Close(int) error { return cerr.Platform("umad_close_port") }

// Register fails, as Open does.
func Register(int, uint8) (int, error) { return 0, cerr.Platform("umad_register") }

// Unregister fails, as Open does.
func Unregister(int, int) error { return cerr.Platform("umad_unregister") }

// HeaderSize fails, as Open does.
func HeaderSize() (int, error) { return 0, cerr.Platform("umad_size") }

// Send fails, as Open does.
func Send(int, int, []byte, int) error { return cerr.Platform("umad_send") }

// Receive fails, as Open does.
func Receive(int, []byte, int) (int, error) { return 0, cerr.Platform("umad_recv") }
