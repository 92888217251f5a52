// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/verbena-go/verbena/gen/internal/emit"
)

func runCoverage(facts string) error {
	all, err := emit.LoadAll(facts)
	if err != nil {
		return err
	}
	return emit.Coverage(all, os.Stdout)
}
