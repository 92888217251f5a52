// SPDX-License-Identifier: Apache-2.0

package rdmaxclient

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cmd/program"
	"github.com/verbena-go/verbena/internal/cmd/rdmax"
	"github.com/verbena-go/verbena/internal/testutil/programtest"
)

var main = programtest.Main(Main)

func TestParse(t *testing.T) {
	for args, want := range map[string]options{
		"-s host -p 7500 -c r": {program.Server{Address: "host", Port: 7500}, rdmax.Kind{}},
		"-c x -s ::":           {program.Server{Address: "::", Port: 7471}, rdmax.Kind{Extended: true}},
	} {
		o := options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		require.Equal(t, want, o, args)
	}
}

func TestWrongArguments(t *testing.T) {
	main.WrongServer(t, "rdmaxclient")
	main.WrongArguments(t, "rdmaxclient", 1, programtest.WrongKinds)
}

func TestHelp(t *testing.T) { main.Help(t, "-c, --connection kind", "(default r)") }

func TestWithoutDevice(t *testing.T) {
	main.WithoutDevice(t, "rdmaxclient", "-s 192.0.2.1 -c r", "-s 192.0.2.1 -c x")
}
