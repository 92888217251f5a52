// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

func TestParse(t *testing.T) {
	programtest.Parses(t, (*options).program, options{size: 64, port: 7174}, map[string]func(*options){
		"-s":              func(o *options) { o.server = true },
		"-sP -a ::0":      func(o *options) { o.server, o.persistent, o.address = true, true, "::0" },
		"-c -a 192.0.2.1": func(o *options) { o.client, o.address = true, "192.0.2.1" },
		"-ca192.0.2.1":    func(o *options) { o.client, o.address = true, "192.0.2.1" },
		"-cvVdq -S 4096 -C10 -I 192.0.2.2 -a host -p 7175 -t 32": func(o *options) {
			o.client, o.tos = true, 32
			o.verbose, o.validate, o.debug, o.manualQP = true, true, true, true
			o.size, o.count, o.port, o.source, o.address = 4096, 10, 7175, "192.0.2.2", "host"
		},
		"-s -S 23":         func(o *options) { o.server, o.size = true, 23 },
		"-s -S 65535":      func(o *options) { o.server, o.size = true, 65535 },
		"-s -C 2147483647": func(o *options) { o.server, o.count = true, 2147483647 },
		"-s -p 1 -p 65535": func(o *options) { o.server, o.port = true, 65535 }, // the last one counts
	})
}

// The status is C's.
func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "rping", 22, map[string]string{
		"":                 "either -s or -c must be given",
		"-v":               "either -s or -c must be given",
		"-s -c -a 1.2.3.4": "either -s or -c must be given",
		"-c":               "-c needs -a, the server's address",
		"-s -S 22":         "expected a number from 23 to 65535",
		"-s -S 65536":      "expected a number from 23 to 65535",
		"-s -S many":       "expected a number",
		"-s -C -1":         "expected a number from 0 to 2147483647",
		"-s -C 2147483648": "expected a number",
		"-c -a h -t 256":   "expected a number from 0 to 255",
	})
}
