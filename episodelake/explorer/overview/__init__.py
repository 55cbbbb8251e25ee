"""First screens: of a store its figures, curves, runs and health, and of a lake its stores."""
