// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPublished(t *testing.T) {
	const number = "0123456789abcdef"
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
		require.Equal(t, ok, published(name), name)
	}
}
