// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
)

// how is the value of -T: the way to transfer data.
type how struct {
	tcp, verify, resolve bool
	wait                 wait
}

// wait is the way in which an end waits for data.
type wait int

const (
	spinning wait = iota // busy-waiting
	blocking             // busy-waiting for a moment, then sleeping
	asleep
)

// words lists the words for -T, each with its letter and the prefix that C
// compares.
var words = []struct {
	letter, begin string
	set           func(*how) error
}{
	{"s", "socket", func(h *how) error { h.tcp = true; return nil }},
	{"a", "async", func(h *how) error { h.wait = asleep; return nil }},
	{"b", "block", func(h *how) error { h.wait = blocking; return nil }},
	{"n", "nonblock", func(h *how) error { h.wait = spinning; return nil }},
	{"r", "resolve", func(h *how) error { h.resolve = true; return nil }},
	{"v", "verify", func(h *how) error { h.verify = true; return nil }},
	{"f", "fork", func(*how) error { return errors.New("a Go program cannot fork: start a server for each client") }},
}

func (h *how) Set(text string) error {
	for _, w := range words {
		if text == w.letter || len(text) > 1 && strings.HasPrefix(strings.ToLower(text), w.begin) {
			return w.set(h)
		}
	}
	return fmt.Errorf("expected s, a, b, n, r or v")
}

func (h *how) String() string { return "" }

func (h *how) Type() string { return "word" }
