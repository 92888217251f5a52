// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What the caller skips stays skipped.
func TestSkipping(t *testing.T) {
	require.Equal(t, "^(ExampleA|ExampleB)$", skipping("", []string{"ExampleA", "ExampleB"}))
	require.Equal(t, "TestX/sub|^(Example)$", skipping("TestX/sub", []string{"Example"}))
}
