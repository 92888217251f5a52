package main

import "github.com/verbena-go/verbena/gen/internal/emit"

func runEmit(facts, out, skeleton string) error {
	in, err := emit.Load(facts)
	if err != nil {
		return err
	}
	if err := emit.Emit(in, out); err != nil {
		return err
	}
	return emit.Skeleton(in, skeleton)
}
