// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/verbena-go/verbena/gen/internal/emit"

func runEmit(facts, out, skeleton, libraries string) error {
	in, err := emit.Load(facts)
	if err != nil {
		return err
	}
	if err := emit.Emit(in, out); err != nil {
		return err
	}
	if err := emit.Skeleton(in, skeleton); err != nil {
		return err
	}
	return emit.Libraries(in, libraries)
}
