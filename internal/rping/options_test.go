package rping

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	with := func(change func(o *options)) *options {
		o := &options{size: 64, port: 7174}
		change(o)
		return o
	}
	for _, tt := range []struct {
		args string
		want *options
	}{
		{"-s", with(func(o *options) { o.server = true })},
		{"-sP -a ::0", with(func(o *options) { o.server, o.persistent, o.address = true, true, "::0" })},
		{"-c -a 192.0.2.1", with(func(o *options) { o.address = "192.0.2.1" })},
		{"-ca192.0.2.1", with(func(o *options) { o.address = "192.0.2.1" })},
		{"-cvVdq -S 4096 -C10 -I 192.0.2.2 -a host -p 7175", with(func(o *options) {
			o.verbose, o.validate, o.debug, o.manualQP = true, true, true, true
			o.size, o.count, o.port, o.source, o.address = 4096, 10, 7175, "192.0.2.2", "host"
		})},
		{"-s -S 23", with(func(o *options) { o.server, o.size = true, 23 })},
		{"-s -S 65535", with(func(o *options) { o.server, o.size = true, 65535 })},
		{"-s -C 2147483647", with(func(o *options) { o.server, o.count = true, 2147483647 })},
		{"-s -p 1 -p 65535", with(func(o *options) { o.server, o.port = true, 65535 })}, // the last one counts
	} {
		t.Run(tt.args, func(t *testing.T) {
			o, err := parse(strings.Fields(tt.args))
			require.NoError(t, err)
			require.Equal(t, tt.want, o)
		})
	}
}

func TestParseFails(t *testing.T) {
	for args, text := range map[string]string{
		"":                 "either -s or -c must be given; -h lists the flags",
		"-v":               "either -s or -c must be given",
		"-s -c -a 1.2.3.4": "either -s or -c must be given",
		"-c":               "-c needs -a, the server's address",
		"-s -x":            "there is no flag -x; -h lists them",
		"-sx1":             "there is no flag -x",
		"--help":           "there is no flag --",
		"-s extra":         `unexpected argument "extra"`,
		"-s -":             `unexpected argument "-"`,
		"-s -S":            "-S needs a value",
		"-s -S 22":         "-S 22: expected a number from 23 to 65535",
		"-s -S 65536":      "-S 65536: expected a number from 23 to 65535",
		"-s -S many":       "-S many: expected a number",
		"-s -C -1":         "-C -1: expected a number from 0 to 2147483647",
		"-s -C 2147483648": "-C 2147483648: expected a number",
		"-s -p 0":          "-p 0: expected a number from 1 to 65535",
		"-s -p 65536":      "-p 65536: expected a number from 1 to 65535",
	} {
		_, err := parse(strings.Fields(args))
		require.ErrorContains(t, err, text, "%q", args)
	}
}

func FuzzParse(f *testing.F) {
	for _, args := range []string{"-s", "-cvVdq -S 4096 -C10 -a host", "-s -p", "-sP\xff", "- -- -h"} {
		f.Add(args)
	}
	f.Fuzz(func(t *testing.T, args string) {
		o, err := parse(strings.Fields(args))
		if err != nil {
			require.Nil(t, o)
			require.NotEmpty(t, err.Error())
			return
		}
		require.True(t, o.server || o.address != "")
		require.True(t, minSize <= o.size && o.size <= maxSize, o.size)
		require.True(t, 0 <= o.count && o.count <= maxCount, o.count)
		require.True(t, 1 <= o.port && o.port <= 65535, o.port)
	})
}
