// SPDX-License-Identifier: Apache-2.0

package programtest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// Parses checks that a program parses arguments into the expected options.
// changes maps arguments to a function that changes the default options to the
// expected ones. The function is nil if the arguments change nothing.
func Parses[Options any](
	t *testing.T, programOf func(*Options) *program.Program, defaults Options, changes map[string]func(*Options),
) {
	t.Helper()
	for args, change := range changes {
		want, got := defaults, *new(Options)
		if change != nil {
			change(&want)
		}
		require.NoError(t, programOf(&got).Parse(strings.Fields(args)), args)
		require.Equal(t, want, got, args)
	}
}
