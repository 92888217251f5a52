// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"os"
	"syscall"
	"unsafe"
)

// persist stores what was written to memory, which belongs to shared mappings
// of files. It returns when the files' data is on their device.
func persist(memory []byte) error {
	page := uintptr(os.Getpagesize())
	first := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	start := first &^ (page - 1)
	_, _, err := syscall.Syscall(syscall.SYS_MSYNC, start, first-start+uintptr(len(memory)), syscall.MS_SYNC)
	if err != 0 {
		return err
	}
	return nil
}
