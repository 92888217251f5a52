package rdmaclient

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/programtest"
)

var main = programtest.Main(Main)

func TestParse(t *testing.T) {
	for args, want := range map[string]options{
		"":                     {"", 7471},
		"-s host -p 7500":      {"host", 7500},
		"--server :: --port 1": {"::", 1},
	} {
		o := options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		require.Equal(t, want, o, args)
	}
}

func TestWrongArguments(t *testing.T) {
	main.WrongArguments(t, "rdmaclient", 1, map[string]string{
		"-x":       "unknown shorthand flag",
		"-p 0":     "expected a number from 1 to 65535",
		"-p 65536": "expected a number from 1 to 65535",
		"host":     "unexpected argument",
		"":         "-s is missing",
		"-p 7471":  "-s is missing",
	})
}

func TestHelp(t *testing.T) { main.Help(t, "-p, --port port") }

func TestWithoutDevice(t *testing.T) {
	main.WithoutDevice(t, "rdmaclient", "-s 192.0.2.1")
}
