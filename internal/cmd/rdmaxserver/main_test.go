package rdmaxserver

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/programtest"

	"github.com/verbena-go/verbena/internal/cmd/rdmax"
)

var main = programtest.Main(Main)

func TestParse(t *testing.T) {
	for args, want := range map[string]options{
		"":             {7471, rdmax.Kind{}},
		"-p 7500 -c r": {7500, rdmax.Kind{}},
		"-cX --port 1": {1, rdmax.Kind{Extended: true}},
	} {
		o := options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		require.Equal(t, want, o, args)
	}
}

func TestWrongArguments(t *testing.T) {
	main.WrongArguments(t, "rdmaxserver", 1, map[string]string{
		"-x":       "unknown shorthand flag",
		"-c u":     "expected r or x",
		"-c":       "flag needs an argument",
		"-p 65536": "expected a number from 1 to 65535",
		"host":     "unexpected argument",
	})
}

func TestHelp(t *testing.T) { main.Help(t, "-c, --connection kind", "(default r)") }

func TestWithoutDevice(t *testing.T) {
	main.WithoutDevice(t, "rdmaxserver", "-c r", "-c x")
}
