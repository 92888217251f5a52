// SPDX-License-Identifier: Apache-2.0

package rdmaclient

import (
	"testing"

	"github.com/verbena-go/verbena/internal/testutil/programtest"
)

var main = programtest.Main(Main)

func TestWrongArguments(t *testing.T) { main.WrongServer(t, "rdmaclient") }

func TestHelp(t *testing.T) { main.Help(t, "-p, --port port") }

func TestWithoutDevice(t *testing.T) {
	main.WithoutDevice(t, "rdmaclient", "-s 192.0.2.1")
}
