"""What comes next: reserve calls, the fronts of strategies, and what throttles them."""
