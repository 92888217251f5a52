// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPublished(t *testing.T) {
	const number, before = "0123456789abcdef", "ffff888102030405: 00000002 00000000 00010000 0001 01 12345 "
	for name, ok := range map[string]bool{
		"@verbena-softroce/stat/" + number:                       true,
		"@verbena-softroce-" + number + "/stat/" + number:        true,
		"@verbena-softroce-" + number + "/stat/" + number + "0":  false,
		"@verbena-softroce-" + number + "/stat/0123456789ABCDEF": false,
		"@verbena-softroce-" + number + "/name/" + number:        false,
		"@verbena-softroce-" + number[1:] + "/stat/" + number:    false,
		"@verbena-softroce" + number + "/stat/" + number:         false,
		"@verbena-softroce-" + number + "/stat/":                 false,
		"/run/verbena-softroce/stat/" + number:                   false,
		"@other":                                                 false,
		"":                                                       false,
	} {
		got, found := published(before + name)
		require.Equal(t, ok, found, name)
		if ok {
			require.Equal(t, name, got)
		}
	}
	_, found := published("@verbena-softroce/stat/" + number)
	require.False(t, found, "the line has nothing before the name")
}
