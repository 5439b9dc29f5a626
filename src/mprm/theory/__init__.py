"""The paper's analysis as functions: what each equation says of steps, rollouts and training."""
