package tests

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What README shows of a program is part of an Example, which is compiled here
// and run with a device.
func TestReadmeShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	example, err := os.ReadFile("../rdmacm/example_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.Len(t, blocks, 1)
	code := strings.TrimSpace(blocks[0][1])
	require.Contains(t, code, "rdmacm.Dial")
	require.Contains(t, string(example), code)
}
