// SPDX-License-Identifier: Apache-2.0

// Package inquiry lets a process ask others of the same user what they know of
// themselves. Each of these listens on a Unix socket with a name in Linux's
// abstract namespace, which needs no file.
package inquiry

import "time"

// Timeout is how long a process has to answer.
const Timeout = 2 * time.Second

// Answer is the answer of a process.
type Answer struct {
	PID  int    // process ID; 0: the process is in another PID namespace
	Data []byte // result of the function that the process has passed to Serve
	Err  error  // reason why there is no answer
}

// IsNumber reports whether text is a 64-bit number in hexadecimal, which is the
// part of a socket's name that makes it unique.
func IsNumber(text string) bool {
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(text) == 16
}
