// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/verbena-go/verbena/softroce"
)

func TestMain(m *testing.M) {
	if err := softroce.Use(softroce.Config{}); err != nil {
		fmt.Println(err) // this program cannot call C
		os.Exit(0)
	}
	os.Exit(m.Run())
}
