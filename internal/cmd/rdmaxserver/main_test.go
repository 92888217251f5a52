// SPDX-License-Identifier: Apache-2.0

package rdmaxserver

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cmd/rdmax"
	"github.com/verbena-go/verbena/internal/testutil/programtest"
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
	main.WrongArguments(t, "rdmaxserver", 1, programtest.WrongPorts)
	main.WrongArguments(t, "rdmaxserver", 1, programtest.WrongKinds)
}

func TestHelp(t *testing.T) { main.Help(t, "-c, --connection kind", "(default r)") }

func TestWithoutDevice(t *testing.T) {
	main.WithoutDevice(t, "rdmaxserver", "-c r", "-c x")
}
