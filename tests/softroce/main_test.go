// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"os"
	"testing"

	"github.com/verbena-go/verbena/internal/cmd/cmtime"
	"github.com/verbena-go/verbena/internal/cmd/mckey"
	"github.com/verbena-go/verbena/internal/cmd/rdmaclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmadevices"
	"github.com/verbena-go/verbena/internal/cmd/rdmaserver"
	"github.com/verbena-go/verbena/internal/cmd/rping"
	"github.com/verbena-go/verbena/internal/cmd/rstream"
	program "github.com/verbena-go/verbena/internal/cmd/softroce"
	"github.com/verbena-go/verbena/internal/cmd/ucmatose"
	"github.com/verbena-go/verbena/internal/cmd/udaddy"
	"github.com/verbena-go/verbena/internal/cmd/verbena"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"
)

func TestMain(m *testing.M) {
	if os.Getenv(faultsVariable) != "" {
		softroce.SetFaults(bad)
	}
	process.Become(map[string]process.Program{
		"cmtime": cmtime.Main, "mckey": mckey.Main, "rping": rping.Main, "rstream": rstream.Main, "ucmatose": ucmatose.Main,
		"udaddy": udaddy.Main, "rdmaclient": rdmaclient.Main, "rdmaserver": rdmaserver.Main, "rdmadevices": rdmadevices.Main,
		"softroce": program.Main, "verbena": verbena.Main,
	})
	os.Exit(m.Run())
}
