// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"os"
	"strings"
)

// TakeEnvironment makes Go's environment have the variables VERBENA_... of C's.
// Go's runtime has the environment with which the process was started, from the
// memory where the system has put it. A C program that loads Go later may have
// set variables since, or may have overwritten that memory with its title for
// ps.
func TakeEnvironment() {
	ours := map[string]string{}
	for i := 0; ; i++ {
		text, ok := variable(i)
		if !ok {
			break
		}
		name, value, _ := strings.Cut(text, "=")
		if _, there := ours[name]; !there && strings.HasPrefix(name, "VERBENA_") { // the first one counts for getenv
			ours[name] = value
		}
	}
	// Only what differs: Go sets the variable in C, too, where other threads may
	// read it now.
	for name, value := range ours {
		if known, ok := os.LookupEnv(name); !ok || known != value {
			_ = os.Setenv(name, value) // a name and a value that C has are valid
		}
	}
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "VERBENA_") {
			if _, there := ours[name]; !there {
				_ = os.Unsetenv(name)
			}
		}
	}
}
