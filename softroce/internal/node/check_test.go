// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSetCheck(t *testing.T) {
	choices.Lock()
	made, before := choices.made, choices.check
	choices.Unlock()
	t.Cleanup(func() {
		choices.Lock()
		defer choices.Unlock()
		choices.made, choices.check = made, before
	})
	for name, tt := range map[string]struct {
		set, environment string
		want             Check
		same             string // options that are in use
		cause            string
	}{
		"nothing":                {"", "", NoCheck, "0", ""},
		"off":                    {"0", "1", NoCheck, "0", ""},
		"reports":                {"1", "", ReportingCheck, "1", ""},
		"aborts":                 {"", "abort", AbortingCheck, "abort", ""},
		"off in the environment": {"", "0", NoCheck, "0", ""},
		"wrong":                  {"", "yes", NoCheck, "", `VERBENA_CHECK=yes: check is "yes": want 0, 1 or abort`},
	} {
		t.Run(name, func(t *testing.T) {
			choices.made, choices.check = false, ""
			t.Setenv(CheckVariable, tt.environment)
			require.NoError(t, SetCheck("abort"), "the device is not in use yet")
			require.NoError(t, SetCheck(tt.set))
			check, err := chosenCheck()
			require.Equal(t, tt.want, check)
			if tt.cause == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, tt.cause)
			}
			for _, options := range []string{"0", "1", "abort"} {
				err := SetCheck(options)
				if options == tt.same {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, errInUse, options)
				}
			}
			require.ErrorContains(t, SetCheck("yes"), "want 0, 1 or abort")
		})
	}
}
