// SPDX-License-Identifier: Apache-2.0

package api

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersion(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{
		{"33.2", "44.0", -1},
		{"9.0", "33.2", -1}, // number by number, not letter by letter
		{"65.10", "65.9", 1},
		{"59", "59.0", 0},
		{"59", "59.1", -1},
		{"0", "0.0", 0},
		{"100", "65.0", 1},
	}
	for _, tt := range tests {
		a, err := ParseVersion(tt.a)
		require.NoError(t, err)
		b, err := ParseVersion(tt.b)
		require.NoError(t, err)
		require.Equal(t, tt.want, a.Compare(b), "%s and %s", tt.a, tt.b)
		require.Equal(t, -tt.want, b.Compare(a), "%s and %s", tt.b, tt.a)
	}
	for _, bad := range []string{"", ".", "65.", ".1", "v65", "65-dev", "6 5", "+1", "-1", "01", "99999999999999999999"} {
		_, err := ParseVersion(bad)
		require.EqualError(t, err, `"`+bad+`" is not a version such as 65.0`)
	}
}

func TestVersions(t *testing.T) {
	dir := t.TempDir()
	write := func(name, version string) {
		text, err := (&API{Version: version}).Marshal()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	_, err := LoadAll(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, dir)

	for _, version := range []string{"100.0", "9.0", "65.0", "65.1"} {
		write(version+".json", version)
	}
	versions, err := Versions(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"9.0", "65.0", "65.1", "100.0"}, versions)
	all, err := LoadAll(dir)
	require.NoError(t, err)
	require.Len(t, all, 4)
	require.Equal(t, "100.0", all[3].Version, "the newest")

	write("101.0.json", "99.0")
	_, err = LoadAll(dir)
	require.EqualError(t, err, filepath.Join(dir, "101.0.json")+`: the snapshot is of version "99.0"`)
	write("latest.json", "102.0")
	_, err = LoadAll(dir)
	require.EqualError(t, err, filepath.Join(dir, "latest.json")+`: "latest" is not a version such as 65.0`)
}
