// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bufio"
	"strconv"
	"strings"
)

// isPersistent reports whether all memory between the addresses from and to is
// persistent: msync(2) stores what is written to it.
func isPersistent(from, to uint64) (bool, error) {
	maps, err := openMappings()
	if err != nil {
		return false, err
	}
	defer maps.Close()
	return ofFiles(bufio.NewScanner(maps), from, to), nil
}

// ofFiles reports whether all memory between the addresses from and to belongs
// to shared mappings of files. lines are the lines of /proc/self/maps.
func ofFiles(lines *bufio.Scanner, from, to uint64) bool {
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // addresses, permissions, offset, device, inode, name
		if len(fields) < 5 {
			return false
		}
		first, last, _ := strings.Cut(fields[0], "-")
		start, err := strconv.ParseUint(first, 16, 64)
		if err != nil {
			return false
		}
		end, err := strconv.ParseUint(last, 16, 64)
		if err != nil {
			return false
		}
		if end <= from {
			continue
		}
		if start > from || !strings.HasSuffix(fields[1], "s") || fields[4] == "0" {
			return false
		}
		if end >= to {
			return true
		}
		from = end
	}
	return false
}
