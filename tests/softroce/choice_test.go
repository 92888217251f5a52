// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoice(t *testing.T) {
	programs := map[string]string{}
	for _, tag := range []string{"soft", "none"} {
		programs[tag] = filepath.Join(t.TempDir(), tag)
		out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", tag, "-o", programs[tag], "./testdata/devices").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	const (
		devices = "devices: [soft0]\n"
		channel = "channel: <nil>\n"
	)
	both := func(text string) string { return "devices: " + text + "\nchannel: " + text + "\n" }
	tests := []struct {
		name, program, variable, when string
		want                          string
	}{
		{"the environment's choice", "soft", "soft", "", devices + channel},
		{"the program's", "soft", "", "first", "use: <nil>\n" + devices + channel},
		{"both", "soft", "soft", "last", devices + channel + "use: <nil>\n"},
		{"the program's in place of another", "soft", "sofd", "first", "use: <nil>\n" + devices + channel},
		{
			"a device that is not in the program", "none", "soft", "",
			both(`VERBENA_DEVICE=soft: this program does not have the device "soft": add to it: import _ "github.com/verbena-go/verbena/softroce"`),
		},
		{
			"a device that is unknown", "soft", "sofd", "",
			both(`VERBENA_DEVICE=sofd: unknown device "sofd" (known: soft); if VERBENA_DEVICE is not set, the devices of the installed libraries are used`),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, run(t, programs[tt.program], tt.variable, tt.when))
		})
	}
	t.Run("too late", func(t *testing.T) {
		lines := strings.SplitAfter(run(t, programs["soft"], "", "last"), "\n")
		require.Len(t, lines, 4)
		require.NotEqual(t, devices, lines[0], "the installed library was to answer")
		require.Equal(t, `use: softroce.Use: the device "soft" cannot be used any more: libibverbs.so.1 was loaded before; choose the device first`+"\n", lines[2])
	})
}

// run runs a program and returns what it prints.
func run(t *testing.T, program, variable, when string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, when)
	cmd.Env = append(os.Environ(), "VERBENA_DEVICE="+variable)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
