// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"
)

// hostPrograms are the programs that the test binary becomes in network
// namespaces.
var hostPrograms = map[string]process.Program{}

func TestMain(m *testing.M) {
	process.Become(hostPrograms)
	if err := softroce.Use(softroce.Config{}); err != nil {
		fmt.Println(err) // this program cannot call C
		os.Exit(0)
	}
	os.Exit(m.Run())
}
