// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func newCommands() *Commands {
	one := func(name, summary string) func() *Program {
		return func() *Program {
			return &Program{
				Name: "many " + name, Summary: summary, Usage: "many " + name, Text: "Does " + name + ".", Misused: ExitMisused,
				Flags: func(*Flags) {}, Run: func(_ context.Context, out Output) error { out.Printf("%s\n", name); return nil },
			}
		}
	}
	return &Commands{
		Name: "many", Text: "Does many things.", Version: func() string { return "many 1" },
		All: []Command{
			{Name: "doctor", Program: one("doctor", "find out")},
			{Name: "watch", Program: one("watch", "look")},
			{Name: "more", Commands: &Commands{
				Name: "many more", Summary: "other things", Text: "Does others.", All: []Command{{Name: "run", Program: one("more run", "go")}},
			}},
		},
	}
}

const list = `many COMMAND [flags] [arguments]
many help [COMMAND]
many --version

  doctor   find out
  watch    look
  more     other things

Does many things.
`

func TestCommands(t *testing.T) {
	for _, tt := range []struct {
		args           string
		status         int
		stdout, stderr string
	}{
		{"doctor", 0, "doctor\n", ""},
		{"more run", 0, "more run\n", ""},
		{"--version", 0, "many 1\n", ""},
		{"-h", 0, list, ""},
		{"--help", 0, list, ""},
		{"help", 0, list, ""},
		{"", 2, "", list},
		{"help watch", 0, "many watch\n\n\nDoes watch.\n", ""},
		{"watch -h", 0, "many watch\n\n\nDoes watch.\n", ""},
		{"help more run", 0, "many more run\n\n\nDoes more run.\n", ""},
		{"help more", 0, "many more COMMAND [flags] [arguments]\nmany more help [COMMAND]\n\n  run   go\n\nDoes others.\n", ""},
		{"docter", 2, "", "many: unknown command \"docter\"; did you mean \"doctor\"?; many -h lists the commands\n"},
		{"doc", 2, "", "many: unknown command \"doc\"; did you mean \"doctor\"?; many -h lists the commands\n"},
		{"wacth", 2, "", "many: unknown command \"wacth\"; did you mean \"watch\"?; many -h lists the commands\n"},
		{"fly", 2, "", "many: unknown command \"fly\"; many -h lists the commands\n"},
		{"-x", 2, "", "many: unknown flag -x; many -h lists the commands\n"},
		{"--version x", 2, "", "many: unexpected argument \"x\"; many -h lists the commands\n"},
		{"help wach", 2, "", "many: unknown command \"wach\"; did you mean \"watch\"?; many -h lists the commands\n"},
		{"help watch x", 2, "", "many: unexpected argument \"x\"; many -h lists the commands\n"},
		{"watch x", 2, "", "many watch: unexpected argument \"x\"; -h lists the flags\n"},
		{"more --version", 2, "", "many more: unknown flag --version; many more -h lists the commands\n"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, tt.status, newCommands().Main(strings.Fields(tt.args), &stdout, &stderr), tt.args)
		require.Equal(t, tt.stdout, stdout.String(), tt.args)
		require.Equal(t, tt.stderr, stderr.String(), tt.args)
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "ab", 0}, {"ab", "ba", 1}, {"ping", "pong", 1}, {"perf", "pref", 1}, {"stat", "status", 2}} {
		require.Equal(t, tt.want, distance(tt.a, tt.b), tt.a+" "+tt.b)
		require.Equal(t, tt.want, distance(tt.b, tt.a), tt.b+" "+tt.a)
	}
}
